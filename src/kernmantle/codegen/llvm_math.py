"""x"""
FUNCTIONS = ("exp",)
NON_NEGATIVE_POWER = "pow_abs"
BIAS = {"float": 127, "double": 1023}
MANTISSA = {"float": 23, "double": 52}
def definitions(needed): return []
