"""Discrete Markov random fields from noisy contingency tables. Pure numpy and scipy on released values.

Source: Bernstein, McKenna, Sun, Sheldon, Hay, Miklau (2017), "Differentially private learning of undirected graphical
models using collective graphical models".
"""
