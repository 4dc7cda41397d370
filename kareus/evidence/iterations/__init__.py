"""Measured training iterations: reading public measurements of whole iterations, predicting and scoring them."""
