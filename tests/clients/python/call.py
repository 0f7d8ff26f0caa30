"""Calls the Worker through the package that is generated from its API description."""
