"""What DirectML's header and pages say, as data and rules; nothing here touches an array."""
