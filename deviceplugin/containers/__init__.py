"""How a container gets its cards: device lists, device nodes and CDI specifications."""
