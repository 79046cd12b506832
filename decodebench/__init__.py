"""decodebench: which decoding method is fastest for my model, at the quality I need?"""

__version__ = "0.1.0"
