"""Begins a program of dev/ or bench/ as scripts begin (scripts/common/startup.py), with scripts/ on Python's path:

    if __name__ == "__main__":
        from begin import startup
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "scripts"))
from common import startup

startup.begin()
