"""What is wrong with a service, in words, and what to do: :mod:`~holdfast.doctor.folder` looks at a data folder,
:mod:`~holdfast.doctor.cluster` at a service on many machines.

Looking changes nothing.  What can be mended safely is, with consent.
"""
