import sys

from mpchain_launch import main

sys.exit(main())
