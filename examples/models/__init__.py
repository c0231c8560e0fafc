"""Models small enough to train on two CPU cores, made or fetched without a model hub."""
