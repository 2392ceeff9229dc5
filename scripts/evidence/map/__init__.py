"""When federation pays: linear heads over clients, images a client, label skew and feature shift."""
