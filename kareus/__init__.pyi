from kareus.api import advise as advise
from kareus.api import frontier as frontier
from kareus.api import load_plan as load_plan
from kareus.api import measured_iterations as measured_iterations
from kareus.api import plan as plan
from kareus.api import predict as predict
from kareus.api import resolve as resolve
from kareus.export.dataset import open_results as open_results

__version__: str
