"""Models: use a trained model; the training data are not needed."""
