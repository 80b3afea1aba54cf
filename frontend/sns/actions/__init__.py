"""The actions of SNS."""
