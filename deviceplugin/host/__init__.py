"""The machine: cgroups and their containers, folders that change, a driver that may hang."""
