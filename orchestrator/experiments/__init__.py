"""Policies compared in production: who gets which arm, what came of it, and what that proves."""
