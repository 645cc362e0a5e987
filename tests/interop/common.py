"""What the checks of interop.py share."""
import subprocess
import sys

NOT_RUN = 77


def require(name):
    try:
        return __import__(name)
    except ImportError as error:
        print(f"NOT RUN: {name} cannot be imported ({error}); install it to check files against it")
        sys.exit(NOT_RUN)


def tool(command, folder):
    subprocess.run([sys.argv[2], command, folder], check=True)


def expect(holds, what):
    if not holds:
        sys.exit(f"not as expected: {what}")
