"""Draws the prompts from which the stories of `tiny` were written: chats that ask to retell a short story, whose answer has begun.

    python3 prompts.py --count 20000 --seed 1 > prompts.jsonl
    doorbell run --model smollm2 --device gpu --prompts prompts.jsonl --raw --temperature 0.5 --group 4 --store log

Each line is a request of `doorbell run --prompts`: `prompt` is the text that the model goes on with (`--raw`), and ends with the
opening of the story, which `corpus.py` puts back before each answer. The same seed gives the same file on every machine.

SmolLM2-135M loops and wanders when it has to invent a story, and tells one well when it gets its outline: so that is drawn here.
"""

import argparse
import json
import random

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"

HE = "Tom Ben Max Sam Tim Leo Jack Finn Bob Billy Toby Milo".split()
SHE = "Lily Mia Anna Lucy Sue Daisy Ella Molly Zoe Ruby Bella Amy".split()
ANIMALS = "cat dog fox bear rabbit mouse duck frog bird owl pig cow horse sheep goat turtle squirrel monkey elephant lion bee fish puppy kitten penguin".split()
THINGS = "robot train boat car snowman dragon cloud star".split()
TEMPERS = "little small brave shy happy sad kind silly sleepy curious hungry lonely friendly clever funny lazy".split()
DAYS = "sunny rainy windy cold warm snowy bright hot".split()
HOMES = ["in a big forest", "near a lake", "on a farm", "in a small house", "by the sea", "in a green garden", "on a tall hill", "in an old barn", "under a big tree", "in a little town"]
PLACES = ["the park", "the forest", "the beach", "the garden", "the river", "the farm", "the zoo", "the school", "the hill", "the market", "the lake", "the pond"]
LOVES = ["play with a ball", "sing songs", "dance in the rain", "jump over puddles", "swim in the lake", "paint pictures", "read books", "climb trees", "bake cakes", "build houses of sand",
         "sleep in the sun", "look at the stars", "eat apples", "run very fast", "help friends", "pick flowers"]
FINDS = ["a red ball", "a shiny key", "a blue kite", "a big box", "a yellow hat", "a magic stone", "a little boat", "an old book", "a sweet apple", "a golden coin", "a broken toy", "a pink flower",
         "a tiny egg", "a warm blanket", "a big cake", "a small drum", "a pretty shell", "a little bell", "a jar of honey", "a wooden horse"]
FRIENDS = ["a wise owl", "a little girl", "a small boy", "a big dog", "a kind man", "an old woman", "a lost duck", "a funny frog", "a sad bunny", "a white cat", "a busy bee", "a tall horse",
           "a sleepy bear", "a tiny mouse", "a green turtle", "a red bird"]

# What goes wrong and how it ends well: {n} is the hero's name, {he}, {him} and {his} pronouns, {f} the friend, {o} the thing that was found.
TROUBLES = [
    ["It began to rain and {n} got lost.", "{f} showed {him} the way home.", '"Thank you," said {n}.'],
    ["Then {n} fell into a deep hole and could not get out.", "{f} heard {him} cry and brought a rope.", "{n} climbed out and they hugged."],
    ["{f} wanted {o} too, but {n} did not want to share.", "{f} was sad and went away.", '{n} was sorry. "You can have {o}," {he} said.', "They played together."],
    ["{n} dropped {o} and it broke.", "{he} began to cry.", '{f} said, "Do not cry. I can help you."', "They fixed it together."],
    ["The wind took {o} away.", "{n} ran after it, but it was too fast.", "{f} jumped up and caught it.", "They both laughed."],
    ['{n} heard a strange noise. "Who is there?" {he} asked.', '"It is only me," said {f}. "I am hungry."', "{n} shared some food with {f}."],
    ["{n} told a lie about {o}.", "{f} was very sad.", 'Then {n} told the truth. "I am sorry," {he} said.', "{f} smiled and gave {him} a hug."],
    ["{f} was sick and had to stay in bed.", "{n} brought {o} and some warm soup.", "Soon {f} felt better."],
    ["It got dark and {n} was afraid.", "{f} sat down next to {him} and sang a song.", "{n} was not afraid any more and fell asleep."],
    ['{n} met {f}. "I have lost something," said {f}.', "It was {o}!", "{n} gave it back.", "{f} was so glad that they had a party."],
    ["{n} wanted to climb up a tall tree, but {he} was too small.", '"Try again," said {f}.', "{n} tried again and again, and then {he} did it.", "{f} was very proud of {him}."],
    ['There was a fire in the house. "Help!" called {n}.', "{f} came with a lot of water.", "Soon everyone was safe."],
    ["{f} could not sleep.", "{n} told a story about {o}.", "They looked at the moon and fell asleep."],
    ["{n} made a big mess.", "{f} was angry.", "They cleaned it up together.", "Then they ate a sweet cake."],
    ["{n} had no friends and felt lonely.", '"Do you want to play with me?" asked {f}.', "They played all day long."],
    ["A big storm came, and {f} fell into the water.", "{n} was very brave and pulled {f} out.", "They went home and drank warm milk."],
    ['{n} showed {o} to {f}. "It is so pretty!" said {f}.', "They played with it until the sun went down.", "Then they said good night."],
    ['"Let us play hide and seek," said {f}.', "{n} looked here and there.", "At last {he} found {f} behind a big rock.", "They laughed and laughed."],
    ["{n} planted a small seed in the ground.", "{f} gave it water every day.", "It grew into a tall and pretty tree."],
    ['"I can run faster than you," said {f}.', "They ran a race.", "{n} won, but {he} said, \"You are fast too.\"", "They shook hands."],
    ["{n} ate too much cake and {his} tummy hurt.", '"Drink some tea," said {f}.', "Soon {n} felt better."],
    ["{n} saw a light in the dark woods.", '"Do not go there," said {f}.', "But it was only the moon on the water.", "They sat down and looked at it."],
    ["{f} had a birthday, but nobody came.", "{n} brought {o} and a cake.", '"This is the best day," said {f}.'],
    ["{n} wanted to fly like a bird.", "{he} jumped from a rock and fell into the mud.", '"You do not need to fly," said {f}. "You can ride with me."', "They went up the hill together."],
    ["{n} could not find {o} any more.", "{he} looked under the bed and in the box.", '"Here it is!" said {f}.', "{n} was so glad."],
    ['"Can I have some food?" asked {f}.', "{n} gave {f} half of the bread.", '"You are a good friend," said {f}.'],
    ["It was very cold and {f} had no coat.", "{n} made a warm coat out of leaves.", '"Now I am warm," said {f}.'],
    ["{n} found a big bug on the path.", '"Do not step on it," said {f}.', "They put it on a green leaf.", "The bug was safe."],
    ["{n} built a tall tower of blocks.", "{f} ran into it and it fell down.", '"I am sorry," said {f}.', "They built a new tower, and it was even bigger."],
    ['"Where is my mom?" asked {f}.', "{n} helped to look for her.", "They looked behind the trees and under the rocks.", "At last they found her."],
]
ENDS = ["They went home and slept.", "They became best friends.", "Everyone was happy.", "They ate dinner with the family.", "They laughed and danced.", "From that day on, {n} was always kind.",
        "From that day on, {n} was very brave.", "From that day on, {n} liked to share.", "{n} was very happy.", "The end."]
ASKS = ["Rewrite this story in your own words, for small children:", "Retell this story for small children, in simple words:", "Tell this story to a small child, with a little more detail:",
        "Make this story better, in simple words for small children:"]


def request(draw):
    is_he = draw.random() < 0.5
    name, he, him, his = (draw.choice(HE), "he", "him", "his") if is_he else (draw.choice(SHE), "she", "her", "her")
    kind = draw.random()
    who = draw.choice(ANIMALS if kind < 0.6 else ["boy" if is_he else "girl"] if kind < 0.9 else THINGS)
    temper, day = draw.choice(TEMPERS), draw.choice(DAYS)
    article = "an" if temper[0] in "aeiou" else "a"
    about = f"{article} {temper} {who} named {name}"
    home, place, loves = draw.choice(HOMES), draw.choice(PLACES), draw.choice(LOVES)
    found, friend = draw.choice(FINDS), draw.choice(FRIENDS)
    the = lambda text: "the " + text.split(" ", 1)[1]
    begin, lived = draw.choice([
        (f"Once upon a time, there was {about}.", False), (f"Once upon a time, there was {about}.", False), (f"Once upon a time, there was {about}.", False), (f"Once there was {about}.", False),
        (f"Once upon a time, {about} lived {home}.", True), (f"{name} was {article} {temper} {who}.", False), (f"{name} the {who} lived {home}.", True),
    ])
    middle = [f"{he.capitalize()} loved to {loves}."] + ([] if lived else [f"{he.capitalize()} lived {home}."])
    plot = draw.sample(middle, draw.randint(0, len(middle)))
    plot.append(draw.choice([f"One {day} day, {name} went to {place} and found {found}.", f"One day, {name} found {found}.", f"One {day} day, {name} and {friend} found {found}.",
                             f"One day, {name} went to {place} with {friend} and found {found}."]))
    met = friend in plot[-1]
    troubles = draw.sample(TROUBLES, draw.choice([1, 1, 2]))
    for text in sum(troubles, []) + [draw.choice(ENDS)]:
        for key, value in (("{n}", name), ("{he}", he), ("{him}", him), ("{his}", his), ("{o}", the(found))):
            text = text.replace(key, value)
        if "{f}" in text and not met:
            text, met = text.replace("{f}", friend, 1), True
        text = text.replace("{f}", the(friend))
        plot.append(text[:1].upper() + text[1:])
    ask = f"{draw.choice(ASKS)}\n\n{begin} {' '.join(plot)}"
    chat = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in [("system", SYSTEM), ("user", ask)])
    return {"prompt": f"{chat}<|im_start|>assistant\n{begin}"}


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--count", type=int, required=True)
    options.add_argument("--seed", type=int, required=True)
    options = options.parse_args()
    draw = random.Random(options.seed)
    for _ in range(options.count):
        print(json.dumps(request(draw)))


if __name__ == "__main__":
    main()
