"""Keep a store healthy by the clock: the door of the beat room.

`celery -A app beat` of an app with a commander sends the maintenance tasks by itself; nothing of this need be called.
"""

from .schedule import schedule_entries

__all__ = ["schedule_entries"]
