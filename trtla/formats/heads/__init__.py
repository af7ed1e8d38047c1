"""Trained heads on disk: EAGLE-3 and Medusa, small networks that draft from a model's states."""
