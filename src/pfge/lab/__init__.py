"""The lab: data sets, architectures and experiments built on the core."""
