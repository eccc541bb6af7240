"""The living definition, which every other backend is compared with."""
