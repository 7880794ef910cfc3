"""Questions put to the test by training: what the paper claims, and what each part of a training recipe brings.

``python -m tools.study run claims`` trains what is missing and records it, ``python -m tools.study`` makes the pages.

- ``questions``: which networks and settings are compared, and what is asked about them.
- ``training``: trains them, one after the other.
- ``noise``: tests trained networks on noisy images.
- ``verdict``: what differences between seeds say.
- ``page``: tables and pictures.
"""

from tools.study.noise import measure_noise
from tools.study.page import write_pages
from tools.study.questions import STUDIES
from tools.study.training import Job, list_jobs, run_job

__all__ = ["STUDIES", "Job", "list_jobs", "measure_noise", "run_job", "write_pages"]
