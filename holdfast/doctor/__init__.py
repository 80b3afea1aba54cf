"""Diagnosis of a service, with advice: :mod:`~holdfast.doctor.folder` examines a data folder,
:mod:`~holdfast.doctor.cluster` a service on many machines.

Examination changes nothing.  Safe repairs are made after confirmation.
"""
