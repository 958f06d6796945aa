"""Releases that shipped a silent bug, and the first that was mended: does `tunecheck watch` tell them apart?"""
