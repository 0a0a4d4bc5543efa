"""The loops: read `fit.py` first."""
