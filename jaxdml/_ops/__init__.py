"""One file per operator, named after it: bind the arguments, check the desc, contract, requantize."""
