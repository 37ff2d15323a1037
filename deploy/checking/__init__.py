"""`baton check-config`: what is wrong with a deployment, found without a cluster."""
