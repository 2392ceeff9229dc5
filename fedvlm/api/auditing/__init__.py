"""What one step of a client gives away: labels, and features in closed form or by a search."""
