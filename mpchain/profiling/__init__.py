"""Profiles, which measure how each rank spends the time of a step."""

from mpchain.profiling.session import Profile as Profile
from mpchain.profiling.session import profile as profile
from mpchain.profiling.table import Row as Row
from mpchain.profiling.table import print_table as print_table
from mpchain.profiling.table import rows as rows
