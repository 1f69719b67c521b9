"""What the machine says: cgroups and their containers, folders that change, a driver that may hang."""
