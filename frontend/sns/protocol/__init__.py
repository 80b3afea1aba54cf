"""The protocol of SNS, version 2010-03-31: actions, members, errors and limits."""
