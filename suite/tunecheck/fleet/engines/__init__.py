"""Engines: what finds the nodes, starts a task on each and cancels what is queued. None of them is tunecheck's own."""

from tunecheck.fleet.engines.local import Local
from tunecheck.fleet.engines.ray_cluster import RayCluster
from tunecheck.fleet.engines.slurm import Slurm
from tunecheck.fleet.request import Engine

ENGINES: dict[str, type[Engine]] = {"local": Local, "slurm": Slurm, "ray": RayCluster}
