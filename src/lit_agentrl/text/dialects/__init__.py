"""Reply grammars: how a policy writes what it does, one file each."""
