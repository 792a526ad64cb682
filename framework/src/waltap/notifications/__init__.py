"""Notifications: what a pipeline tells of its snapshots, and the channels that carry it."""
