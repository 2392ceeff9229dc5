"""When federation pays: linear heads over clients, images a client, label skew, feature shift."""
