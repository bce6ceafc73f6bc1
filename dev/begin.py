"""Begins a program of dev/ or bench/ as scripts begin (scripts/common/startup.py), with both folders on the path:

    if __name__ == "__main__":
        from begin import startup
"""
import os
import sys

HERE = os.path.dirname(os.path.realpath(__file__))  # dev/, also through the link in bench/
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "scripts")]
from common import startup

startup.begin()
