"""The content of DirectML's header and pages, as data and rules; no module in this folder touches an array."""
