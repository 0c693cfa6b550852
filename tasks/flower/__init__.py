"""Durable runs and health in Flower. Nothing outside imports this but `tasks/pages.py`, and that only inside Flower."""

from .mount import mount

__all__ = ["mount"]
