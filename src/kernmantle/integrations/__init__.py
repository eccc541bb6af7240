"""Other libraries' interfaces on the contractions of this one; each module needs the library it is named for."""
