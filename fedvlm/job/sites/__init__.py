"""A federation of parties with data of their own: a party's side, and the coordinator's."""
