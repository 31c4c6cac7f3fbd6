"""Training: configuration, credit, packing, loss, the DeepSpeed learner, weight pushes and the loop."""
