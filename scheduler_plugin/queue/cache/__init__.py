"""The queue's cache: waiting and admitted pods, jobs and their stages, queues and slots."""
