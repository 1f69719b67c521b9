"""The process of the queue: settings, watches, writes, and what people are shown."""
