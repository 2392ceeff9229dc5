"""A key of a site, in the two forms in which it travels, and a certificate; private keys of neither
exist any more."""

NAME = "clinic_a"
LINE = (
    "ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAABhBAO6yiSa96V1IQyj4Vho"
    "i9Dm+Sws2spDPEKLMt4HOaLG01D/j2R4kpe4TxDAgANotxSNjXbJH6w4lfrbdPFotpfP9i7xEcclXCNrUnijJr0dkZF+"
    "D9ezyhEtnB0bDgZBsA=="
)
MARK = "SHA256:igZSBL4Rcm198F69qOFMauTsqmvmpTSbM0Jbp7IeeT8"  # as ssh-keygen -lf has it
PEM = """-----BEGIN PUBLIC KEY-----
MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAEA7rKJJr3pXUhDKPhWGiL0Ob5LCzaykM8
Qosy3gc5osbTUP+PZHiSl7hPEMCAA2i3FI2NdskfrDiV+tt08Wi2l8/2LvERxyVc
I2tSeKMmvR2RkX4P17PKES2cHRsOBkGw
-----END PUBLIC KEY-----
"""
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIBfzCCASWgAwIBAgIU\n-----END CERTIFICATE-----\n"
