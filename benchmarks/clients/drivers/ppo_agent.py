"""Stable-Baselines3: PPO on a pole that is balanced."""

from stable_baselines3 import PPO

PPO("MlpPolicy", "CartPole-v1", device="cuda", n_steps=64, verbose=1).learn(512)
