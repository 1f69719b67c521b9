"""`gpupack verify`: shows in the user's own cluster that sharing works, and leaves nothing behind.

`verifier` goes through the steps, `target` chooses the card on which they are tried, `objects` makes what is
created and reads what comes of it. `container` is what the pods run.
"""
