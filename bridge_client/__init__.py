"""The home's side of the bridge, and the Python app client. It speaks to the hub through `protocol` alone."""
