"""Will the machine room be in thermal hazard in six hours, and what may be done about it? From the inlet temperatures
of the nodes. Imports ``foundation`` and the errors of the package."""
