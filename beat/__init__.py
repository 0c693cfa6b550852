"""Keep a store healthy by the clock: the door of the beat room. Nothing stands here yet."""

__all__: list[str] = []
