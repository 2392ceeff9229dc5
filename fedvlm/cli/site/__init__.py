"""Sites: parties whose images stay where they are"""
