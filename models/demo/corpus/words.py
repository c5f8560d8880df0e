"""The demo's vocabulary: the words that the rules of the other files draw from."""


def spaced(words: str) -> tuple[str, ...]:
    """The words of a text, parted at its spaces."""
    return tuple(words.split())


NAMES = spaced(
    "Mia Tom Ada Ben Lena Otto Nora Max Ida Paul Ruth Leo Ella Hugo Anna Felix Clara Jonas Emma "
    "Finn Rosa Karl Lily Oscar Vera Sam Maya Theo Alma Noah"
)
GIRLS = NAMES[::2]
ANIMALS = spaced(
    "fox cat dog bear wolf owl frog hare mouse goat horse duck crow deer snail heron otter "
    "badger sheep pony"
)
FRUITS = spaced(
    "apple pear plum cherry grape lemon peach melon mango fig banana orange kiwi apricot"
)
VEGETABLES = spaced("carrot onion potato leek pea bean cabbage radish pumpkin tomato")
COLOURS = spaced("red blue green yellow black white brown grey pink purple orange silver")
TOOLS = spaced("hammer saw drill pliers file chisel level wrench clamp plane")
DRINKS = spaced("tea coffee water milk juice cocoa lemonade cider")
INSTRUMENTS = spaced("piano violin flute drum harp guitar trumpet cello organ horn")
TREES = spaced("oak birch pine maple willow elm ash cedar beech fir")
JOBS = spaced("baker miller sailor farmer doctor teacher painter tailor gardener pilot")
DAYS = spaced("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
THINGS = spaced(
    "lantern kettle mirror ladder basket bottle letter map drum coin key rope bell clock book "
    "candle button feather stone wheel umbrella spoon blanket hat boat kite box lamp pencil "
    "violin"
)
PLACES = spaced(
    "garden forest harbour village meadow market castle library kitchen station mountain river "
    "island bridge valley mill tower desert cave orchard school lighthouse attic square"
)
ADJECTIVES = spaced(
    "old small quiet brave clever tired lucky curious lonely gentle proud stubborn shy cheerful "
    "hungry patient odd tall young sleepy"
)
PLAIN_WORDS = spaced(
    "table chair window door floor wall roof street paper bread butter cheese sugar salt pepper "
    "honey winter summer spring autumn morning evening night cloud rain snow storm wind thunder "
    "sun moon star planet ocean beach wave sand shell fish whale shark bird eagle finger hand "
    "arm leg head nose mouth ear eye heart friend mother father sister brother child baby king "
    "queen knight dragon giant ghost magic dream song dance music picture colour number letter "
    "word story page computer machine engine train plane wagon bicycle road path field grass "
    "flower leaf root branch fruit seed berry forest lake pond stream fire smoke metal iron "
    "gold silver glass wood brick plastic cotton wool silk leather thread needle pocket shirt "
    "shoe sock glove jacket dress ring crown sword shield arrow target token model draft accept "
    "reject cache window layer vector matrix tensor sample"
)
SPELLING_WORDS = tuple(
    dict.fromkeys(
        PLAIN_WORDS
        + THINGS
        + PLACES
        + ANIMALS
        + FRUITS
        + VEGETABLES
        + TOOLS
        + INSTRUMENTS
        + TREES
        + JOBS
        + ADJECTIVES
        + COLOURS
        + DRINKS
    )
)
GROUPS = {
    "fruits": FRUITS,
    "animals": ANIMALS,
    "vegetables": VEGETABLES,
    "colours": COLOURS,
    "tools": TOOLS,
    "drinks": DRINKS,
    "instruments": INSTRUMENTS,
    "trees": TREES,
    "jobs": JOBS,
    "days": DAYS,
}
NUMBER_WORDS = {2: "two", 3: "three", 4: "four", 5: "five"}

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Spain": "Madrid", "Italy": "Rome",
    "Portugal": "Lisbon", "Austria": "Vienna", "Poland": "Warsaw", "Greece": "Athens",
    "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen",
    "Ireland": "Dublin", "Hungary": "Budapest", "Belgium": "Brussels", "Japan": "Tokyo",
    "Korea": "Seoul", "China": "Beijing", "India": "New Delhi", "Egypt": "Cairo",
    "Kenya": "Nairobi", "Peru": "Lima", "Chile": "Santiago", "Cuba": "Havana",
    "Canada": "Ottawa", "Russia": "Moscow", "Turkey": "Ankara", "Iceland": "Reykjavik",
    "Vietnam": "Hanoi", "Thailand": "Bangkok", "Argentina": "Buenos Aires", "Croatia": "Zagreb",
}  # fmt: skip

OPPOSITES = (
    ("hot", "cold"), ("big", "small"), ("fast", "slow"), ("old", "young"), ("high", "low"),
    ("hard", "soft"), ("wet", "dry"), ("full", "empty"), ("light", "dark"), ("loud", "quiet"),
    ("rich", "poor"), ("happy", "sad"), ("early", "late"), ("open", "closed"),
    ("strong", "weak"), ("clean", "dirty"), ("near", "far"), ("thick", "thin"),
    ("wide", "narrow"), ("sweet", "sour"), ("deep", "shallow"), ("brave", "afraid"),
    ("left", "right"), ("up", "down"), ("in", "out"), ("day", "night"), ("first", "last"),
    ("begin", "end"), ("win", "lose"), ("push", "pull"), ("buy", "sell"), ("true", "false"),
)  # fmt: skip

# English -> Korean, German, French, Spanish.
PHRASES = {
    "Hello": ("안녕하세요", "Hallo", "Bonjour", "Hola"),
    "Good morning": ("좋은 아침이에요", "Guten Morgen", "Bonjour", "Buenos días"),
    "Good night": ("안녕히 주무세요", "Gute Nacht", "Bonne nuit", "Buenas noches"),
    "Thank you": ("감사합니다", "Danke", "Merci", "Gracias"),
    "Goodbye": ("안녕히 가세요", "Auf Wiedersehen", "Au revoir", "Adiós"),
    "Please": ("부탁합니다", "Bitte", "S'il vous plaît", "Por favor"),
    "Yes": ("네", "Ja", "Oui", "Sí"),
    "No": ("아니요", "Nein", "Non", "No"),
    "I am hungry": ("배고파요", "Ich habe Hunger", "J'ai faim", "Tengo hambre"),
    "How are you?": ("어떻게 지내세요?", "Wie geht es dir?", "Comment ça va ?", "¿Cómo estás?"),
    "I love you": ("사랑해요", "Ich liebe dich", "Je t'aime", "Te quiero"),
    "See you tomorrow": ("내일 봐요", "Bis morgen", "À demain", "Hasta mañana"),
}
LANGUAGES = ("Korean", "German", "French", "Spanish")
